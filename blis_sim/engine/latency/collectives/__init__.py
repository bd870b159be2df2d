"""How long GPUs take to exchange data: all-reduces of tensor parallelism and all-to-alls of experts."""
