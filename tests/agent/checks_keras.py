"""A model that Keras fits on the torch backend, with its own progress bar and a validation an epoch."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy

model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
model.fit(numpy.ones((64, 4)), numpy.ones((64, 1)), batch_size=8, epochs=3, validation_split=0.25)
print("ENDED", flush=True)
