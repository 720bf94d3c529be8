# TFF's worker and nothing else: it is one program, which wants the C++ library.
#
#   docker build --file deploy/worker.Dockerfile --tag tvdp-tf-worker:0.87.0 .

FROM python:3.11-slim-bookworm AS package
# Version and hash are those of requirements.lock.
RUN printf '%s \\\n  %s\n' 'tensorflow-federated==0.87.0' \
      '--hash=sha256:7d6f66b4afb5fdf94fc790fd4610b9e216b2f124a2643d7852ed44e5ed218c56' > wanted.txt \
    && pip download --no-deps --require-hashes --requirement wanted.txt \
    && python -m zipfile --extract tensorflow_federated-*.whl package \
    && install --mode=755 -D \
      package/tensorflow_federated/data/worker_binary /worker_binary

FROM debian:bookworm-slim
COPY --from=package /worker_binary /usr/local/bin/worker_binary
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/worker_binary"]
CMD ["--port=8000"]
