"""OpenCV's dnn module."""

from __future__ import annotations

from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {
    "title": "OpenCV",
    "packages": (
        "opencv-python-headless|opencv-python|opencv-contrib-python-headless|opencv-contrib-python",
    ),
    "tried": "5.0.0.93",
    "threads": True,
}


def load(model: Model) -> Run:
    import cv2

    if model.threads:
        cv2.setNumThreads(model.threads)
    net = cv2.dnn.readNetFromONNX(model.path)
    outputs = list(model.outputs)

    def run(feeds: Arrays) -> Arrays:
        for name, array in feeds.items():
            net.setInput(array, name)
        return dict(zip(outputs, net.forward(outputs), strict=True))

    return run
