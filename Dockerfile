# A server for one model, on CPUs: `docker build -t bertworks .`, then docs/guides/serve.md.
# The version of Python, and that of every package, is the one that the tests run with.
FROM python:3.11-slim

# torch first, by its version in constraints.txt, from PyTorch's index of builds without CUDA: these are a tenth of the size.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0

WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY bertworks bertworks
RUN pip install --no-cache-dir -c constraints.txt ".[serve]"

# Nothing is downloaded at run time: the model is mounted at /model, readable for user 1000 (or run with --user).
ENV HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
RUN useradd --uid 1000 --create-home bertworks
USER bertworks
WORKDIR /home/bertworks

# BERTWORKS_API_KEY must be set: a server for other machines refuses to start without a token.
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["bertworks", "serve", "--host", "0.0.0.0", "--port", "8080"]
CMD ["/model"]
