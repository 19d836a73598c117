"""Which notices each receiver gets and when: what is queued, held, reminded of and reported each morning."""
