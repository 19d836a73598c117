"""A model that Keras fits, by default on the torch backend, with its own progress bar and a validation an epoch.

Its targets are multiplied by the argument, which may be nan.
"""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy

factor = float(sys.argv[1]) if sys.argv[1:] else 1.0

model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
model.fit(numpy.ones((64, 4)), factor * numpy.ones((64, 1)), batch_size=8, epochs=3, validation_split=0.25)
print("ENDED", flush=True)
