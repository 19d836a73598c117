"""`supervisorctl setup`: install the units, rights and settings, and remove them."""
