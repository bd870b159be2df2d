"""What is behind the server: which engines the options ask for, built and ready to be driven."""
