"""Step times from measured kernels: what a model computes, tables of measurements, and the grids made of both."""
