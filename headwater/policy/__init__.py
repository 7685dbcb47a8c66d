"""Who decides and learns: the policy contract, distributions, and the choice of networks. Imports no framework."""
