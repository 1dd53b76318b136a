#!/bin/sh
{
# Installs a release of dmschat: program, man pages and shell completions.
#
#   curl -fsSL https://github.com/@REPO@/releases/latest/download/install.sh | sh
#
# DMSCHAT_PREFIX   where to (default ~/.local: bin/ and share/ in it)
# DMSCHAT_VERSION  another version than that of this script
# DMSCHAT_RELEASES folder or https URL that has the archive and SHA256SUMS
#
# The braces make a script that was cut off while it was downloaded a syntax error: nothing of it runs.
set -eu

repo=@REPO@
version=${DMSCHAT_VERSION:-@VERSION@}
prefix=${DMSCHAT_PREFIX:-$HOME/.local}
from=${DMSCHAT_RELEASES:-https://github.com/$repo/releases/download/v$version}
new=

fail() {
    echo "install: $*" >&2
    exit 1
}

clean() {
    rm -rf "$work"
    [ -z "$new" ] || rm -f "$new"
}

# wget follows a redirect to http too, and its --https-only is for recursive downloads alone: each redirect is looked at here.
fetch_by_wget() {
    url=$1
    for _ in 1 2 3 4 5 6; do
        case $url in
            https://*) ;;
            *) fail "$1 leads to $url, which is not https" ;;
        esac
        if wget -S --max-redirect=0 -O "$2" "$url" 2>"$work/headers"; then
            return 0
        fi
        url=$(tr -d '\r' <"$work/headers" | sed -n 's/^ *[Ll]ocation: *\([^ ]*\).*/\1/p' | tail -n 1)
        [ -n "$url" ] || return 1
    done
    return 1
}

fetch() {
    case $from in
        https://*)
            if command -v curl >/dev/null; then
                curl -fsSL --proto '=https' --proto-redir '=https' -o "$work/$1" "$from/$1"
            elif command -v wget >/dev/null; then
                fetch_by_wget "$from/$1" "$work/$1"
            else
                fail "curl or wget is needed"
            fi
            ;;
        http://*) fail "$from is not https" ;;
        *) cp "$from/$1" "$work/$1" ;;
    esac || fail "$from/$1 cannot be read"
}

main() {
    case $(uname -s)-$(uname -m) in
        Linux-x86_64) target=x86_64-unknown-linux-gnu ;;
        Linux-aarch64) target=aarch64-unknown-linux-gnu ;;
        Darwin-arm64) target=aarch64-apple-darwin ;;
        *) fail "there is no archive for $(uname -sm); build it: cargo install --git https://github.com/$repo dmschat" ;;
    esac
    if [ "$(uname -s)" = Linux ] && ldd --version 2>&1 | grep -qi musl; then
        fail "the archives need glibc; build it: cargo install --git https://github.com/$repo dmschat"
    fi

    work=$(mktemp -d)
    trap clean EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM

    name=dmschat-$version-$target
    fetch SHA256SUMS
    fetch "$name.tar.gz"
    wanted=
    while read -r sum file; do
        if [ "$file" = "$name.tar.gz" ]; then
            wanted=$sum
            break
        fi
    done <"$work/SHA256SUMS"
    if command -v sha256sum >/dev/null; then
        found=$(sha256sum "$work/$name.tar.gz" | cut -d' ' -f1)
    else
        found=$(shasum -a 256 "$work/$name.tar.gz" | cut -d' ' -f1)
    fi
    if [ -z "$wanted" ] || [ "$wanted" != "$found" ]; then
        fail "the checksum of $name.tar.gz is not that of SHA256SUMS"
    fi

    tar -xzf "$work/$name.tar.gz" -C "$work"
    mkdir -p "$prefix/bin" "$prefix/share"
    # Beside the old program and renamed once it has run, so that a program that works is only replaced by one that does.
    new=$prefix/bin/.dmschat.new
    cp "$work/$name/bin/dmschat" "$new"
    said=$("$new" --version) || fail "the program in $name.tar.gz does not run here; nothing was replaced"
    cp -R "$work/$name/share/." "$prefix/share"
    mv "$new" "$prefix/bin/dmschat"
    new=
    printf '%s\n' "$said"
    case :$PATH: in
        *:"$prefix/bin":*) ;;
        *) echo "install: $prefix/bin is not in PATH" ;;
    esac
}

main "$@"
exit
}
