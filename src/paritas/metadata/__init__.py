"""inference_metadata.yaml: how a package's graphs are driven, as onnx-genai reads it; derived from the saved graphs."""
