"""`tidemill demo`: the order-payment-timeout story, live on the real engine."""
