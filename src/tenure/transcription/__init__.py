"""Speech to text for streams: an extra, `pip install 'tenure[transcription]'`.

Each stream runs its recogniser in a separate process. The process starts when the stream opens and exits when the
stream has finished. So streams cannot affect each other, a recogniser that crashes or hangs ends only its own stream,
and the operating system distributes the processes over the cores.

A thread is not enough: a recogniser is a native library, and pocketsphinx holds the interpreter's lock. With the
recogniser in a thread of the instance, the event loop was blocked for these times:

- 0.15 to 0.34 s while a model was loaded
- 20 ms at a time while 22 s of speech were decoded in small pieces, and 0.5 s at the end
- up to 3.7 s while the same speech was decoded in one call

    handler.py             the stream handler, and `transcribe` for a whole recording
    recognizer_process.py  starts the process of a recogniser and exchanges messages with it
    worker.py              runs in that process
    recognizers.py         the protocol of recognisers, with pocketsphinx and vosk
    wav.py                 reads WAV files
"""
