# The library and the program kvstore, for schedulers, servers and workers of a job. After `make deb`:
#
#   docker build -t libkvstore/kvstore:0.1.0 .
#
# An image with a training program of yours has it too, and runs as any process of the job:
#
#   FROM libkvstore/kvstore:0.1.0
#   COPY train /usr/local/bin/
FROM debian:bookworm-slim
COPY dist/libkvstore0_*.deb dist/kvstore_*.deb /tmp/
RUN dpkg --install /tmp/*.deb && rm /tmp/*.deb && useradd --uid 1000 --create-home kvstore
USER 1000:1000
ENTRYPOINT ["kvstore"]
