"""What holds a training back, what may be tried against it, and when a change is proven: values, no clock, no I/O."""
