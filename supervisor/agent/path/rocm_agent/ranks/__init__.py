"""The process group of a training whose GPUs cannot talk to one another through RCCL, on one machine."""
