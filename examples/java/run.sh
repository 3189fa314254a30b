#!/bin/sh
. "$(dirname "$0")/../broker.sh"
cd "$root/examples/java"
mvn -q -B compile dependency:copy-dependencies
java -Drocketmq.log.root=target/logs -cp "target/classes:target/dependency/*" OrderTimeout
