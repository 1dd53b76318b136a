#!/bin/sh
# Builds the software GPU into the folder $1, as libcuda.so.1. Run from anywhere; needs a C++ compiler.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kernels=$here/../../kernels
out=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags="-std=c++20 -O2 -march=x86-64-v3 -fPIC -fvisibility=hidden -fno-strict-aliasing -fno-ipa-reference -I$here -I$kernels
  -Wall -Wno-unknown-pragmas -Wno-unused-function -Wno-psabi"
compile() { ${CXX:-c++} $flags "$@"; }

objects=$work/first.o
compile -c "$here/first.cpp" -o "$work/first.o"
for source in "$kernels"/*.cu; do
  name=$(basename "$source" .cu)
  {
    echo '#include "device.h"'
    echo 'namespace {'
    echo "#include \"$name.cu\""
    # The kernels of the file, as the index of the PTX lists them.
    sed -n "/^file $name /,/^file /s/^kernel \([a-z0-9_]*\) .*/int number_of_\1 = gpu::Kernel<\&\1>::register_kernel(\"\1\");/p" \
      "$kernels/ptx.txt"
    echo '}'
  } >"$work/$name.cpp"
  compile -c "$work/$name.cpp" -o "$work/$name.o"
  objects="$objects $work/$name.o"
done
for name in last block driver memory stream; do
  compile -c "$here/$name.cpp" -o "$work/$name.o"
  objects="$objects $work/$name.o"
done
mkdir -p "$out"
${CXX:-c++} -shared -Wl,-soname,libcuda.so.1 -Wl,-z,defs $objects -o "$work/libcuda.so.1"
mv "$work/libcuda.so.1" "$out/libcuda.so.1"
ln -sf libcuda.so.1 "$out/libcuda.so"
