/* Errors by number and by name. */
#include "codes.h"
#include "internal.h"

#include <string.h>

static const struct code *of(int number)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].number == number)
            return &codes[i];
    return NULL;
}

const char *zenjun_strerror(int error)
{
    const struct code *found = of(error);

    return found ? found->text : error >= 0 ? "no error" : "unknown error";
}

const char *zenjun_error_name(int error)
{
    const struct code *found = of(error);

    return found ? found->name : error >= 0 ? "ok" : "unknown";
}

int zjc_error_number(const char *code)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].number <= ZENJUN_E_VERSION && !strcmp(codes[i].name, code))
            return codes[i].number;
    return ZENJUN_E_OTHER;
}
