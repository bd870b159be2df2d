"""`blis playback check`: differences between a server's replies and recorded ones."""
