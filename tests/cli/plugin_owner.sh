# A plugin beside the program is loaded if it is the user's own, root's or the program owner's, and nobody else can change
# it; a folder that the user names is the user's business.
. "$(dirname "$0")/common.bash"
mkdir "$scratch/place"
cd "$scratch/place"
cp "$SLUICE" sluice
# No plugin, but a file in its place: loading it fails with the loader's words, refusing it with ours.
echo "nothing" >libsluice_mpi_openmpi.so
unset SLUICE_PLUGIN_PATH
as_rank=(timeout 20 env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0)
try() { run 1 "${as_rank[@]}" "$@" "$scratch/place/sluice" bench comm --worker --rounds 1; }
tries_to_load() { complains "load $scratch/place/libsluice_mpi_openmpi.so: "; }
refuses() { complains "$scratch/place/libsluice_mpi_openmpi.so is not loaded: user $1 or anybody can change it"; }

try
tries_to_load
chmod o+w libsluice_mpi_openmpi.so
try
refuses "$(id -u)"
try SLUICE_PLUGIN_PATH="$scratch/place"
tries_to_load
chmod o-w libsluice_mpi_openmpi.so
chmod o+w .
try
refuses "$(id -u)"
chmod +t . # as /tmp: others can add files, not replace this one
try
tries_to_load
if [ "$(id -u)" -eq 0 ]; then
    chown 65534 libsluice_mpi_openmpi.so
    try
    refuses 65534
    chown 65534 sluice # who owns the program might change that one as well
    try
    tries_to_load
fi
