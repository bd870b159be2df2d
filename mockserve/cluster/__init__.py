"""Several instances behind one endpoint: a cluster in real time, its instances seen one by one, and their control."""
