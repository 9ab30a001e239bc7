# Bash completion for sluice. Commands, options and values come from the program itself, so a new command needs
# nothing here.
_sluice() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} words
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" --words 2>/dev/null)" -- "$current")
        return
    fi
    words=
    if [[ $previous == -* ]]; then
        words=$("${COMP_WORDS[0]}" "${COMP_WORDS[1]}" "--words=$previous" 2>/dev/null)
    elif [[ $current == -* ]]; then
        words=$("${COMP_WORDS[0]}" "${COMP_WORDS[1]}" --words= 2>/dev/null)
    fi
    if [ -n "$words" ] && [ "$words" != "<file>" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -F _sluice sluice
