"""`tidemill.open`: a broker in this process, with the verbs of a client."""
