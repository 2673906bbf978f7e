"""Label points with a KMeans of scikit-learn, on ONNX Runtime, without its distances."""

from onnx.utils import Extractor
from onnxruntime import InferenceSession
from skl2onnx import to_onnx


def make_labels(kmeans, points, provider="CUDAExecutionProvider"):
    """Convert a KMeans; the points, in float32, are an example."""
    model = Extractor(to_onnx(kmeans, points[:1])).extract_model(["X"], ["label"])
    return InferenceSession(model.SerializeToString(), providers=[provider])


def label(session, points):
    """Label points on a device: OrtValue.ortvalue_from_numpy(points, "cuda", 0)."""
    binding = session.io_binding()
    binding.bind_ortvalue_input("X", points)
    binding.bind_output("label", points.device_name())
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy()
