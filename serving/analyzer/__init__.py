"""Prediction of output lengths from features of a call, with calibrated bounds."""
