"""Speech to text for streams: an extra, `pip install 'tenure[transcription]'`.

A recogniser is a native library, and pocketsphinx holds the interpreter's lock. Beside a thread of the same process
the event loop stood still for 0.15 to 0.34 s while it loaded a model, for 20 ms again and again while it was given 22
s of speech in small pieces, for 0.5 s at the end of that, and for up to 3.7 s if it was given them whole. So each
stream has a recogniser in a process of its own, started when the stream opens and gone when it has finished. Streams
cannot mix, a recogniser that crashes or hangs takes only its own stream with it, and the scheduler shares the cores
out.

    handler.py       the stream handler, and `transcribe` for a whole recording
    decoding.py      the instance's side of such a process
    worker.py        what runs in it
    recognizers.py   pocketsphinx, vosk, and the protocol that others fit
    wav.py           the audio in a WAV file
"""
