# syntax=docker/dockerfile:1
# The steps are those of .ci/run (a check there sees to it): a locked release build, here as a static binary.
FROM rust:1.95-alpine AS build
# musl is this image's own target: C parts (mimalloc) and the result are static.
# hadolint ignore=DL3018
RUN apk add --no-cache musl-dev gcc make
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src ./src
COPY benches ./benches
RUN cargo build --release --locked --bin warmroute

FROM scratch
COPY --from=build /src/target/release/warmroute /warmroute
# Writes nothing: run it with a read-only root. The configuration is mounted, secrets come by environment or `file:`.
USER 65532:65532
# 9090 is the operator's: in a container, give `admin: { listen: 0.0.0.0:9090, token: … }`; the default is loopback.
EXPOSE 8080 9090
ENTRYPOINT ["/warmroute"]
CMD ["serve", "--config", "/etc/warmroute/warmroute.yaml"]
