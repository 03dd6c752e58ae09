# rnnlower with every runtime that installs from PyPI, so that `--on` has something to try results on:
#
#     docker build -t rnnlower . && docker run --rm -v "$PWD:/work" rnnlower lower model.onnx -o out.onnx --target tract
FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends clang libgl1 && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip install --no-cache-dir /source && /source/.ci/engines /engines
WORKDIR /work
ENTRYPOINT ["bash", "-c", ". /engines/engines.sh && exec rnnlower \"$@\"", "rnnlower"]
