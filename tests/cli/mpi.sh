# The program under mpirun needs no flags to use MPI, and says what is missing if the plugin is not there.
. "$(dirname "$0")/common.bash"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
tried=0
for flavour in openmpi mpich; do
    [ -e "$SLUICE_BUILD/libsluice_mpi_$flavour.so" ] && command -v "mpirun.$flavour" >/dev/null || continue
    tried=1
    run 0 env -u SLUICE_PLUGIN_PATH "mpirun.$flavour" -n 2 "$SLUICE" bench comm --worker --rounds 1
    [ "$(wc -l <"$out")" -eq 10 ] || fail "$flavour: rank 0 reports ten sizes"
    cp "$SLUICE" "$scratch/alone" # no plugin beside it
    for turn in 1 2 3 4 5; do # now and then mpirun loses all that ranks wrote just before they ended
        code=0
        env -u SLUICE_PLUGIN_PATH "mpirun.$flavour" -n 2 "$scratch/alone" bench comm --worker --rounds 1 >"$out" 2>"$err" || code=$?
        [ "$code" -ne 0 ] || fail "$flavour: without its plugin it must fail"
        cat "$out" >>"$err"
        [ ! -s "$err" ] || break
    done
    complains "libsluice_mpi_$flavour.so is neither in SLUICE_PLUGIN_PATH nor beside the program"
done
[ "$tried" -eq 1 ] || exit 77
