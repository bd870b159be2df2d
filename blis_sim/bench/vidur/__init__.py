"""`blis vidur`: the command line, the arithmetic and the output folder of Vidur, on our schedulers."""
