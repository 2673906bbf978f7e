"""Random numbers, sequences, optionals, classical models: nothing here has a kernel on torch."""

from ortmeter.operators.registry import family

declare = family("other", is_random=True)
declare("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike")

declare = family("other")
declare("ConcatFromSequence SplitToSequence", kind="movement")
declare("SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength")
declare("Optional OptionalGetElement OptionalHasElement")

declare = family("trees")
declare("TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor", domain="ai.onnx.ml")
