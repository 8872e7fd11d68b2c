/** Keeps two blocks of GPU memory, prints its pid, and waits for the end of its input. `jit.rs` runs it with the path of java_native.c's library. */
public class Trainer {
    static native void allocate(long bytes);

    public static void main(String[] arguments) throws Exception {
        System.load(arguments[0]);
        for (int number = 1; number <= 2; number++) allocate(number << 20);
        System.out.println(ProcessHandle.current().pid());
        System.in.read();
    }
}
