/* Runs the 16-bit conversions of reference.c over raw numbers from stdin, little-endian as they come.
 *   convert_driver widen  f16|bf16 <16-bit patterns >32-bit patterns
 *   convert_driver narrow f16|bf16 <32-bit patterns >16-bit patterns */
#include "reference.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: convert_driver widen|narrow f16|bf16\n");
        return 2;
    }
    const int bf16 = strcmp(argv[2], "bf16") == 0;
    uint16_t element;
    float value;
    if (strcmp(argv[1], "widen") == 0) {
        while (fread(&element, sizeof element, 1, stdin) == 1) {
            value = element_to_float(element, bf16);
            fwrite(&value, sizeof value, 1, stdout);
        }
    } else {
        while (fread(&value, sizeof value, 1, stdin) == 1) {
            element = float_to_element(value, bf16);
            fwrite(&element, sizeof element, 1, stdout);
        }
    }
    return 0;
}
