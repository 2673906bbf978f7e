"""Find the fastest setting of a model that is safe, then open a session with it."""

import ortmeter

feeds = ortmeter.random_feeds("model.onnx", dims={"n": 1})  # or your own inputs, by name
found = ortmeter.tune("model.onnx", feeds, tries=["shapes"], budget_s=300)
print(found)  # what to set, or that the defaults are as fast

session = found.setup.spec.session()
