# The command line with OpenVINO and the server, on Debian's Python:
#   docker build -t ortune .        (or podman, buildah, kaniko: nothing here is one builder's own)
#   docker run --rm -v "$PWD:/work" ortune optimize model.onnx --data samples/ -o run
FROM debian:trixie-slim AS tools
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ git make python3-venv \
    && rm -rf /var/lib/apt/lists/*

# Byte code is not written: a quarter of it would be read.
FROM tools AS build
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/ortune \
    && /opt/ortune/bin/pip install --no-cache-dir --no-compile \
        -c requirements/dev.lock '.[openvino,serve]' \
    && /opt/ortune/bin/pip uninstall -y pip

FROM debian:trixie-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home ortune \
    && mkdir /work \
    && chown ortune /work
COPY --from=build /opt/ortune /opt/ortune
ENV PATH=/opt/ortune/bin:/usr/local/bin:/usr/bin:/bin
USER ortune
WORKDIR /work
ENTRYPOINT ["ortune"]
CMD ["--help"]
