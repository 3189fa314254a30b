"""`tidemill demo`: the order-payment-timeout story, live against a real serve."""
