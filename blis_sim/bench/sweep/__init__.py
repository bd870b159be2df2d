"""`blis sweep`: a grid of simulations, on all cores or a Ray cluster, and the choice of a deployment."""
