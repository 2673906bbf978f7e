"""Random numbers and classical models: nothing here has a kernel on torch."""

from ortmeter.operators.registry import family

declare = family("other", is_random=True)
declare("Bernoulli Multinomial RandomNormalLike RandomUniformLike")
declare("RandomNormal RandomUniform", typed_by="dtype")

declare = family("trees")
declare("TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor", domain="ai.onnx.ml")
