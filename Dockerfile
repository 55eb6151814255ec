# Builds lockstep and runs the quickstart's job:      podman run --rm IMAGE
# Any other command of the launcher:                  podman run --rm IMAGE run -n 4 02_char_gpt --steps 50
# scripts/test-image builds and runs it. The steps are those of scripts/, not a second copy.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
WORKDIR /src
# The packages are a layer of their own: they change less often than the sources.
COPY scripts scripts
RUN scripts/quickstart --packages-only && rm -rf /var/lib/apt/lists/*
COPY . .
RUN scripts/install --runtime --with 02_char_gpt /opt/lockstep && scripts/runtime-packages /opt/lockstep > /opt/packages

FROM ${BASE}
COPY --from=build /opt/packages /opt/packages
RUN apt-get update && xargs apt-get install -y --no-install-recommends < /opt/packages && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home lockstep
COPY --from=build /opt/lockstep /opt/lockstep
ENV PATH=/opt/lockstep/bin:$PATH
USER lockstep
WORKDIR /home/lockstep
ENTRYPOINT ["lockstep"]
CMD ["run", "--nproc-per-node", "2", "02_char_gpt", "--out", "char_gpt.safetensors"]
