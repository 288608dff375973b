# All commands of the project, on CPU:
#   docker build --tag docsplit .
#   docker run --rm --volume "$PWD:/data" docsplit docsplit-adapt sentence-transformers/all-MiniLM-L6-v2 documents outputs/mine
# On NVIDIA GPUs, name the wheels that fit the driver, and add `--gpus all` to `docker run`:
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 --tag docsplit .
FROM python:3.11-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

WORKDIR /source
# What changes seldom comes first: a change of the code installs nothing anew.
COPY requirements.txt constraints.txt ./
RUN pip install --extra-index-url "$TORCH_INDEX" -r requirements.txt -c constraints.txt
COPY pyproject.toml setup.py README.md LICENSE *.py ./
COPY docsplit docsplit
COPY recipes recipes
COPY docs/papers docs/papers
RUN pip install --no-deps .

# The first user of most Linux systems: what is written into the volume belongs to them.
WORKDIR /data
RUN useradd --create-home --uid 1000 docsplit && chown docsplit /data
USER 1000
CMD ["docsplit-adapt", "--help"]
