"""The engines behind the server, built from its options and ready to be driven."""
