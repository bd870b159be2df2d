"""`blis sweep`: a grid of simulations, on all cores or a Ray cluster, and what it says of a deployment."""
