"""What the loop handles goes into the record here, and is taken from there where a start finds it lost or late."""
