# syntax=docker/dockerfile:1
# Both images of Outrigger, static programs and nothing else, for amd64 and arm64:
#
#   docker buildx build --target operator --platform linux/amd64,linux/arm64 -t REGISTRY/outrigger-operator:0.1.0 --push .
#   docker buildx build --target sidecar  --platform linux/amd64,linux/arm64 -t REGISTRY/outrigger-sidecar:0.1.0 --push .
#
# The build runs on the builder's own architecture and cross-compiles; nothing is emulated.
ARG RUST_VERSION=1.95

FROM --platform=$BUILDPLATFORM rust:${RUST_VERSION}-slim-bookworm AS build
ARG BUILDARCH
ARG TARGETARCH
WORKDIR /src
# The triple is always named: without --target the static flag would also meet build scripts and procedural macros.
RUN set -eu; \
    case "$TARGETARCH" in \
      amd64) arch=x86_64 ;; \
      arm64) arch=aarch64 ;; \
      *) echo "no build for $TARGETARCH: amd64 and arm64 only" >&2; exit 1 ;; \
    esac; \
    echo "$arch-unknown-linux-gnu" > /triple; \
    if [ "$TARGETARCH" != "$BUILDARCH" ]; then \
      apt-get update; \
      apt-get install -y --no-install-recommends "gcc-$(echo "$arch" | tr _ -)-linux-gnu" "libc6-dev-$TARGETARCH-cross"; \
      rm -rf /var/lib/apt/lists/*; \
      rustup target add "$arch-unknown-linux-gnu"; \
    fi
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,id=outrigger-$TARGETARCH \
    set -eu; \
    triple=$(cat /triple); \
    gcc=gcc; \
    if [ "$TARGETARCH" != "$BUILDARCH" ]; then gcc="${triple%%-*}-linux-gnu-gcc"; fi; \
    export "CARGO_TARGET_$(echo "$triple" | tr a-z- A-Z_)_LINKER=$gcc" "CC_$(echo "$triple" | tr - _)=$gcc" RUSTFLAGS="-C target-feature=+crt-static"; \
    cargo build --release --locked --target "$triple" -p outrigger-operator -p outrigger-sidecar; \
    mkdir /out; \
    cp "target/$triple/release/outrigger-operator" "target/$triple/release/outrigger" "target/$triple/release/outrigger-shim" /out/

FROM scratch AS operator
COPY --from=build /out/outrigger-operator /outrigger-operator
USER 65532:65532
ENTRYPOINT ["/outrigger-operator"]

FROM scratch AS sidecar
COPY --from=build /out/outrigger /outrigger
COPY --from=build /out/outrigger-shim /outrigger-shim
USER 65532:65532
ENTRYPOINT ["/outrigger"]
