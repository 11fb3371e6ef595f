# docker build -t workbench .                           CPU
# docker build -t workbench --build-arg TORCH=cuda .    GPUs: run it with --gpus all
FROM python:3.11-slim-bookworm
ARG TORCH=cpu
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 workbench
COPY --chown=workbench . /home/workbench/workbench
USER workbench
WORKDIR /home/workbench/workbench
RUN test "$TORCH" = cpu || test "$TORCH" = cuda || { echo "TORCH must be cpu or cuda, not $TORCH"; exit 1; }
RUN if [ "$TORCH" = cpu ]; then make install TORCH_INDEX=https://download.pytorch.org/whl/cpu; else make install; fi
ENV PATH=/home/workbench/workbench/.venv/bin:$PATH
EXPOSE 8888
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "--ServerApp.root_dir=notebooks"]
