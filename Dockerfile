# Builds lockstep and runs the quickstart's job:      docker run --rm IMAGE
# Any other command of the launcher:                  docker run --rm IMAGE run -n 4 02_char_gpt --steps 50
# With GPUs, build on NVIDIA's images, from 12.9.1 on: docker build -t IMAGE \
# older ones have an NCCL before 2.27                   --build-arg BASE=nvidia/cuda:12.9.1-devel-ubuntu24.04 \
#                                                       --build-arg RUNTIME_BASE=nvidia/cuda:12.9.1-runtime-ubuntu24.04 .
# For a Kubernetes MPIJob, with an SSH server:        docker build --target mpijob -t IMAGE .
#
# podman takes the same lines. scripts/test --extra image builds and runs it. The steps are those of scripts/, not a second copy.
# SPDX-License-Identifier: Apache-2.0
ARG BASE=debian:bookworm-slim
ARG RUNTIME_BASE=${BASE}

FROM ${BASE} AS build
WORKDIR /src
# The packages are a layer of their own: they change less often than the sources.
COPY scripts scripts
RUN scripts/install --plugins --packages-only && rm -rf /var/lib/apt/lists/*
COPY . .
RUN scripts/install --runtime --plugins --with 02_char_gpt --with 03_raw_gradients /opt/lockstep \
    && scripts/runtime-packages /opt/lockstep > /opt/packages

FROM ${RUNTIME_BASE} AS runtime
COPY --from=build /opt/packages /opt/packages
# mpirun is not linked, so that nothing names its package.
RUN apt-get update && xargs apt-get install -y --no-install-recommends openmpi-bin < /opt/packages \
    && rm -rf /var/lib/apt/lists/*
# A number, so that Kubernetes can see that it is not root. Ubuntu's images give it to a user of theirs.
RUN taken=$(getent passwd 1000 | cut -d: -f1) && { [ -z "$taken" ] || userdel --remove "$taken"; } \
    && useradd --create-home --uid 1000 lockstep
COPY --from=build /opt/lockstep /opt/lockstep
# For programs from elsewhere, whose own path to the libraries is another.
RUN echo /opt/lockstep/lib > /etc/ld.so.conf.d/lockstep.conf && ldconfig
# Loaded when it is asked for, so that the image would be built without it too.
RUN test ! -e /opt/lockstep/lib/liblockstep_cuda.so || ldconfig -p | grep -q 'libnccl\.so\.2 ' \
    || { echo "RUNTIME_BASE has no libnccl.so.2: take one of NVIDIA's runtime or devel images"; exit 1; }
ENV PATH=/opt/lockstep/bin:$PATH
USER 1000
WORKDIR /home/lockstep
ENTRYPOINT ["lockstep"]
CMD ["run", "--nproc-per-node", "2", "02_char_gpt", "--out", "char_gpt.safetensors"]

# Kubeflow's MPIJob reaches its workers by SSH, with the key pair that it mounts at /home/lockstep/.ssh.
FROM runtime AS mpijob
USER root
RUN apt-get update && apt-get install -y --no-install-recommends openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
COPY docs/deploy/kubernetes/ssh/sshd_config /etc/lockstep/sshd_config
COPY docs/deploy/kubernetes/ssh/ssh_config /etc/ssh/ssh_config.d/lockstep.conf
USER 1000

# What is built unless another stage is asked for.
FROM runtime
