"""A recording reverse proxy: one process passes bytes on, another makes a recording of them."""
