"""`supervisorctl gpus`: the readings of every GPU, as a table or live."""
