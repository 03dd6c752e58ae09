/* The caller's side of a streamed model that emx-onnx-cgen has compiled: link it with that file.
   After the last chunk, call stream_flush STREAM_FLUSH times: the outputs are late by STREAM_DELAY steps. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define STREAM_CHUNK @CHUNK@
#define STREAM_DELAY @DELAY@
#define STREAM_FLUSH ((STREAM_DELAY + STREAM_CHUNK - 1) / STREAM_CHUNK)

extern void model(@PARAMETERS@);

/* The states of one stream. */
typedef struct {
@FIELDS@
    int late; /* time steps that are still to be skipped */
} stream_state;

/* Begin a new recording. */
void stream_reset(stream_state *state) {
@RESET@
    state->late = STREAM_DELAY;
}

/* Run one chunk. Return the time steps at the start of the outputs that belong to no frame: skip them. */
int stream_call(stream_state *state@VALUES@) {
    stream_state next;
    int skipped = state->late < STREAM_CHUNK ? state->late : STREAM_CHUNK;
    model(@ARGUMENTS@);
    next.late = state->late - skipped;
    *state = next;
    return skipped;
}

/* Run one chunk of zeros after the last one. Return the same. */
int stream_flush(stream_state *state@REST@) {
@ZEROS@
    return stream_call(state@FLUSHED@);
}

#ifdef STREAM_TEST
/* A program that runs a few calls and compares their outputs with those of the model's reference. */
#include <stdio.h>

@VECTOR@

int main(void) {
    stream_state state;
    int wrong = 0;
    stream_reset(&state);
    for (int call = 0; call < @CALLS@; call++) {
@OUTPUTS@
        stream_call(&state@TESTED@);
@COMPARED@
    }
    printf("%d of the outputs differ\n", wrong);
    return wrong > 0;
}
#endif
