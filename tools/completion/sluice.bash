# Bash completion for sluice. Commands, options and values come from the program itself, so a new command needs
# nothing here.
_sluice() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} words=
    local command=("${COMP_WORDS[@]:0:2}") # the words that say which options there are
    COMPREPLY=()
    if [ "$current" = = ]; then # --format=, which bash cuts at the sign
        current=
    elif [ "$previous" = = ]; then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    if [ "${COMP_WORDS[1]}" = bench ] && [ "$COMP_CWORD" -gt 2 ]; then
        command+=("${COMP_WORDS[2]}")
    fi
    if [ "$COMP_CWORD" -eq 1 ]; then
        words=$("${COMP_WORDS[0]}" --words 2>/dev/null)
    elif [[ $previous == -* ]]; then
        words=$("${command[@]}" "--words=$previous" 2>/dev/null)
    elif [[ $current == -* || ($previous == bench && $COMP_CWORD -eq 2) ]]; then
        words=$("${command[@]}" --words= 2>/dev/null)
    fi
    if [ -n "$words" ] && [ "$words" != "<file>" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -F _sluice sluice
