#!/bin/sh
. "$(dirname "$0")/../broker.sh"
cd "$root/examples/node"
if [ ! -d node_modules/rocketmq-client-nodejs ]; then
    npm ci --ignore-scripts --silent
fi
node order_timeout.js
