# Two images (docs/containers.md):
#     docker build --target cpu -t audiomarathon:cpu .      the demo, tests, reports
#     docker build --target cuda -t audiomarathon:cuda .    models on NVIDIA GPUs; `docker compose up -d` builds it
FROM python:3.12-slim AS base
# A compiler, since Triton builds a launcher at first use; git and make for those who work inside.
RUN apt-get update && apt-get install -y --no-install-recommends gcc git libc6-dev make && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    HF_HOME=/cache/huggingface AUDIOMARATHON_CACHE=/cache/audiomarathon AUDIOMARATHON_DATA=/data
WORKDIR /audiomarathon
# What pip reads, before the rest: an edited page does not install everything again.
COPY pyproject.toml setup.py README.md LICENSE ./
COPY requirements requirements
COPY src src

FROM base AS cpu
RUN PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu pip install "$(grep '^torch==' requirements/cpu.txt)"
RUN pip install -r requirements/cpu.txt -e '.[dev,report]'
COPY . .
CMD ["audiomarathon", "demo", "--results", "/results/demo"]

FROM base AS cuda
# PyTorch's wheels bring CUDA's libraries along; the driver is the host's, by NVIDIA's container toolkit.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN pip install -r requirements/qwen2.5-omni.txt
RUN pip install -e '.[lalm,phi4mm,ray,voxtral]'
COPY . .
CMD ["audiomarathon", "doctor"]
